"""What every process serves to its peers: functions by name, kept values, contexts."""
