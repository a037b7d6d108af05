"""Rules of other systems and papers: Orion's, DexPBT's, GPBT-PL's."""
