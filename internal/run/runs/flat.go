package runs

// Flat returns the run's settings by their paths in run.json, without those that identify the run.
func (r *Run) Flat() (map[string]string, error) { return flat(&r.Settings) }
