"""The words everything else uses: positions, tables, values, events and phases. Standard library only."""
