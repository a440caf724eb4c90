package sim

// witnesses are additional checkers of a job. A nil one is not used.
type witnesses struct {
	twin  *Twin    // values that a bsp job computes
	ebb   *Ebb     // a sparse table with eviction
	mean  *Mean    // a table that combines updates by their mean
	lines *Lineage // for jobs that save each row separately
	bases *bases   // bases of lost shards, for strategies that restart them empty or from the last save
}
