"""`gradmesh doctor`: what is wrong with a set-up, in an operator's words."""
