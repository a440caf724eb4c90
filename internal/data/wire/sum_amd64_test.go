package wire

import "testing"

// TestSumWithoutFolding runs TestSum as on an older processor.
func TestSumWithoutFolding(t *testing.T) {
	if !canFold {
		t.Skip("this processor cannot fold: TestSum has shown it")
	}
	canFold = false
	defer func() { canFold = true }()
	TestSum(t)
}
