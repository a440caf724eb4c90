package disk_test

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/perdure/perdure/internal/data/disk"
)

// A file that WriteFile replaced survives a power failure.
func ExampleWriteFile() {
	fsys := disk.NewMemory()
	err := disk.WriteFile(fsys, "greeting", func(w io.Writer) error {
		_, err := io.WriteString(w, "hello")
		return err
	})
	fsys.Crash(rand.New(rand.NewPCG(1, 2)))
	content, readErr := fsys.ReadFile("greeting")
	fmt.Println(string(content), err, readErr)
	// Output: hello <nil> <nil>
}
