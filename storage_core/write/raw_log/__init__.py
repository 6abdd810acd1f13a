"""Raw log: one log of many writers for many tables, in several stores."""
