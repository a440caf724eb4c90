package worker

import (
	"runtime/debug"
	"sync"
)

// moduleVersion returns the version of Perdure that a program depends on; "" if it is unknown, as in a program that is
// built from a copy of the source.
var moduleVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/perdure/perdure" && m.Replace == nil && m.Version != "(devel)" {
			return m.Version
		}
	}
	return ""
})
