"""Files on disks and in object stores, behind one contract."""
