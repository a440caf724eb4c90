package membership

// guest reports whether a place's process came by itself: nobody here has started it,
// can kill it, or starts its next one.
func (c *Core) guest(k Kind, index int) bool {
	p, _ := c.place(k, index)
	return p.Any || k == Worker && (p.Guest || c.facts.Job.OwnWorkers)
}

// upshot says what becomes of a silent process.
func (c *Core) upshot(k Kind, index int) string {
	switch {
	case !c.guest(k, index):
		return "it is killed and replaced"
	case k == Server:
		return "the others take over what it holds; start another if it does not come back"
	}
	return "start another in its place if it does not come back"
}
