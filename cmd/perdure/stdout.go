package main

import (
	"os"

	"github.com/perdure/perdure/internal/run/plain"
)

// stdout is where commands print. Everything goes through it, so that a command whose
// words were lost says so in the end, and does not end with 0.
var stdout = &plain.Printed{File: os.Stdout}
