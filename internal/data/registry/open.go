package registry

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// Open opens the registry that a text names: the path of a file.
func Open(text string) (Registry, error) {
	if kind, _, is := strings.Cut(text, "://"); is {
		return nil, fmt.Errorf("registry: %s: nobody knows a registry of the kind %s; name a file", text, kind)
	}
	return OpenFile(disk.OS(), text)
}
