"""Reports for people: runs and evaluations as one HTML file."""
