package sim

// witnesses look at more of a job than its History does by itself. Nil: that one is not asked.
type witnesses struct {
	twin  *Twin    // what a bsp job computes
	ebb   *Ebb     // a sparse table whose rows go
	mean  *Mean    // a table that combines updates by their mean
	lines *Lineage // where each row is saved by itself
	bases *bases   // that lost shards go on from, where rows that are lost begin anew, or as saved last
}
