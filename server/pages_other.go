//go:build !linux

package server

import "github.com/perdure/perdure/table"

// largePages is for systems that have to be asked.
func largePages(table.Image) {}
