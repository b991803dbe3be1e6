"""What robots.txt, TDMRep, RSL and CAWG files ask for."""
