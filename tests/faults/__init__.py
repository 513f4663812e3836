"""Cases of the fault campaign (tools/campaign.py), each made by a random generator."""
