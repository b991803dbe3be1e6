"""What experiments share: data, the lab, one measurement, results and their report."""
