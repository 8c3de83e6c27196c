"""Training: models, data and the loop that every rank runs."""
