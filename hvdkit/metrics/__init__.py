"""What Prometheus learns of a run: live while it trains, and the result at its end."""
