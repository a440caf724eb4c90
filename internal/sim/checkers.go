package sim

// checkers are additional checkers of a job. A nil one is not used.
type checkers struct {
	reference *ReferenceTable // values that a bsp job computes
	evicting  *EvictingTable  // a sparse table with eviction
	mean      *MeanTable      // a table that combines updates by their mean
	lineage   *RowLineage     // for jobs that save each row separately
	bases     *baseChecker    // bases of lost shards, for strategies that restart them empty or from the last save
}
