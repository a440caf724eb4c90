package main

import (
	"os"

	"github.com/perdure/perdure/internal/run/humanize"
)

// stdout is where all commands print. It records write errors, so that a command whose output was lost reports that and
// exits with a code other than 0.
var stdout = &humanize.StickyFile{File: os.Stdout}
