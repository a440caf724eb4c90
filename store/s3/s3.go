// Package s3 stores worker states in, and reads checkpoints from, Amazon S3 and servers that implement its protocol.
// Programs import it for its side effect, which registers the driver:
//
//	import _ "github.com/perdure/perdure/store/s3"
//
// The perdure command includes it. Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from
// ~/.aws/credentials.
package s3

import _ "github.com/perdure/perdure/internal/data/store/s3" // registers the driver
