package keys

import (
	"io/fs"
	"os"
)

// rootID is the user ID of root, who may read every file.
const rootID = 0

// accessibleToOthers reports whether users other than the owner can access a file. There is one exception: a process
// that does not run as root accepts a file owned by root that its group may read. Only root can have given that group
// access, and root can read all files anyway. Kubernetes provides secrets that way, with a group that only the pod has,
// and can replace them while the process runs.
func accessibleToOthers(info fs.FileInfo) bool {
	return modeAccessibleToOthers(info.Mode().Perm(), ownerOf(info), os.Geteuid())
}

func modeAccessibleToOthers(mode fs.FileMode, owner, user int) bool {
	if owner == rootID && user != rootID {
		return mode&0o037 != 0
	}
	return mode&0o077 != 0
}
