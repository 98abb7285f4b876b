"""What the programs in bench share."""
