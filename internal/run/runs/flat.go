package runs

// Flat is what the run was asked to be, by the paths in its run.json, without what says which run it is.
func (r *Run) Flat() (map[string]string, error) { return flat(&r.Settings) }
