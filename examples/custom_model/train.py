"""Train a custom model on a local cluster: `python train.py`."""

import gradmesh as gm

JOB = {
    "data": {"rows": [100, 50, 20], "dense_features": 4},
    "model": {"name": "field_model:build", "dim": 8, "top": [16]},
    "job": {
        "steps": 200,
        "batch_size": 128,
        "optimizer": "adagrad",
        "learning_rate": 0.1,
        "table_optimizer": "adagrad",
        "table_learning_rate": 0.1,
        "eval_every": 100,
        "eval_batches": 20,
    },
}


def show(line: dict) -> None:
    """Print the trainers' reports."""
    if line["kind"] == "validation":
        print(f"step {line['step']}: AUC {line['auc']:.4f}")


if __name__ == "__main__":
    result = gm.train(JOB, trainers=2, parameter_servers=2, on_metrics=show)
    print(f"AUC {result.figures['auc']:.4f}, at best {result.figures['best_auc']:.4f}")
