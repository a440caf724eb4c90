package settings

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// logOption is an option that may follow the ? of --log.
type logOption struct {
	own, elsewhere bool // applies to the job's own log, or to a log elsewhere
	// applies only to NATS: a log that requires keys is not a cluster and uses the job's keys
	nats bool
	to   func(l *Log) any // *int; *updatelog.Sync; or *string, which is a file
}

// set parses an option's value.
func (o *logOption) set(l *Log, value string) (err error) {
	switch to := o.to(l).(type) {
	case *int:
		if *to, err = strconv.Atoi(value); err != nil {
			err = fmt.Errorf("%q is not a whole number", value)
		}
	case *updatelog.Sync:
		if *to = updatelog.Sync(value); value == "" {
			err = errors.New("it is empty; leave it out, or give it a value")
		}
	case *string:
		if home, known := os.LookupEnv("HOME"); known && strings.HasPrefix(value, "~/") {
			value = filepath.Join(home, value[2:])
		}
		if *to = value; value != "" {
			*to, err = filepath.Abs(value)
		}
	}
	return err
}

var logOptions = map[string]logOption{
	"sync":        {own: true, to: func(l *Log) any { return &l.Sync }},
	"mb":          {own: true, elsewhere: true, to: func(l *Log) any { return &l.MB }},
	"snapshot-mb": {own: true, elsewhere: true, to: func(l *Log) any { return &l.SnapshotMB }},
	"replicas":    {elsewhere: true, nats: true, to: func(l *Log) any { return &l.Replicas }},
	"creds":       {elsewhere: true, nats: true, to: func(l *Log) any { return &l.Creds }},
	"ca":          {elsewhere: true, nats: true, to: func(l *Log) any { return &l.CA }},
	"cert":        {elsewhere: true, nats: true, to: func(l *Log) any { return &l.Cert }},
	"key":         {elsewhere: true, nats: true, to: func(l *Log) any { return &l.Key }},
}

// OwnLog is the address of the job's own log, without options.
const OwnLog = "file:"

// IsLogURL reports whether text is the address of a log rather than a directory.
func IsLogURL(text string) bool {
	return strings.HasPrefix(text, "nats://") || strings.HasPrefix(text, "tls://") || updatelog.RequiresKeys(text)
}

// ParseLog parses a log as people write it: file:?sync=always, nats://HOST:PORT?creds=FILE, or perdure://HOST:PORT.
func ParseLog(written string) (l LogFlags, err error) {
	where, behind, _ := strings.Cut(written, "?")
	l.Given = map[string]bool{}
	if where != OwnLog {
		u, err := url.Parse(where)
		if err != nil || u.Host == "" || !IsLogURL(where) {
			return l, perdure.Usagef("invalid --log %s; write, for example, file:?sync=always&mb=4096, "+
				"nats://HOST:PORT, tls://HOST:PORT or perdure://HOST:PORT", updatelog.WithoutSecrets(where))
		}
		l.NATS = where
	}
	if behind == "" {
		return l, nil
	}
	for _, pair := range strings.Split(behind, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if value, err = url.PathUnescape(value); err != nil {
			return l, perdure.Usagef("--log: %s: %w", name, err)
		}
		if err := l.setOption(name, value); err != nil {
			return l, err
		}
	}
	return l, nil
}

// setOption parses one option.
func (l *LogFlags) setOption(name, value string) error {
	var known []string
	for _, n := range slices.Sorted(maps.Keys(logOptions)) {
		if o := logOptions[n]; o.own && l.NATS == "" ||
			o.elsewhere && l.NATS != "" && !(o.nats && updatelog.RequiresKeys(l.NATS)) {
			known = append(known, n)
		}
	}
	option, there := logOptions[name]
	switch {
	case l.Given[name]:
		return perdure.Usagef("--log: %s is given twice", name)
	case there && !slices.Contains(known, name) && l.NATS == "":
		return perdure.Usagef("--log: %s applies only to a log on a cluster; leave it out, or write nats://HOST:PORT "+
			"for %s", name, OwnLog)
	case there && option.nats && !slices.Contains(known, name):
		return perdure.Usagef("--log: %s applies only to a NATS cluster; %s://HOST:PORT uses the job's keys: specify "+
			"them with --keys", name, updatelog.KeysScheme)
	case there && !slices.Contains(known, name):
		return perdure.Usagef("--log: %s applies only to the job's own log; for a cluster, configure it on the cluster",
			name)
	case !there:
		return perdure.Usagef("--log has no option %q; choose %s", name, strings.Join(known, ", "))
	}
	l.Given[name] = true
	if err := option.set(&l.Log, value); err != nil {
		return perdure.Usagef("--log: %s: %w", name, err)
	}
	return nil
}
