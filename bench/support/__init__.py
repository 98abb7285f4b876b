"""What bench/data and bench/peers share."""
