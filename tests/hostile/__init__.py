"""What files, disks, nodes and ranks may do to lasg without a wrong result that nobody hears of."""
