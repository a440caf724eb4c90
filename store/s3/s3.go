// Package s3 lets a program keep the states that its workers save, and read checkpoints, in S3 and in servers that
// speak its protocol: import it for its effect, as a driver of package database/sql.
//
//	import _ "github.com/perdure/perdure/store/s3"
//
// The perdure command has it. Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from
// ~/.aws/credentials.
package s3

import _ "github.com/perdure/perdure/internal/data/store/s3" // registers the driver
