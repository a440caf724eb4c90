package s3

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/store"
)

// Address is the location of a store in S3.
type Address struct {
	Bucket   string
	Prefix   string // of all keys, without leading and trailing slashes; may be empty
	Endpoint string // http://HOST[:PORT] or https://HOST[:PORT]; "": AWS
	Region   string // "": from the environment, or from AWS
}

// Scheme is the URL scheme of an address.
const Scheme = "s3"

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixPart = regexp.MustCompile(`^[A-Za-z0-9!_.*'()=+-]+$`)
)

// Parse parses s3://BUCKET/PREFIX?endpoint=URL&region=NAME. It rejects addresses that contain secrets and does not
// repeat them in the error.
func Parse(text string) (a Address, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != Scheme {
		return a, errors.New("invalid address; write s3://BUCKET/PREFIX?endpoint=URL&region=NAME")
	}
	if u.User != nil {
		return a, errSecret
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return a, errors.New("invalid query parameters; write endpoint=URL and region=NAME")
	}
	for name, values := range query {
		switch {
		case strings.Contains(strings.ToLower(name), "key"), strings.Contains(strings.ToLower(name), "secret"),
			strings.Contains(strings.ToLower(name), "token"):
			return a, errSecret
		case name != "endpoint" && name != "region":
			return a, fmt.Errorf("unknown query parameter %q; only endpoint=URL and region=NAME are allowed", name)
		case len(values) > 1:
			return a, fmt.Errorf("%s is given twice", name)
		}
	}
	a = Address{
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Region: query.Get("region"),
	}
	if !bucketName.MatchString(a.Bucket) {
		return a, fmt.Errorf("invalid bucket name %q", a.Bucket)
	}
	if a.Prefix != "" {
		for _, part := range strings.Split(a.Prefix, "/") {
			if !prefixPart.MatchString(part) || part == "." || part == ".." {
				return a, fmt.Errorf("invalid prefix %q", a.Prefix)
			}
		}
	}
	a.Endpoint, err = endpoint(query.Get("endpoint"))
	return a, err
}

var errSecret = errors.New("the address must not contain secrets: credentials are taken from AWS_ACCESS_KEY_ID and " +
	"AWS_SECRET_ACCESS_KEY, or from ~/.aws/credentials")

// endpoint parses URL, or HOST:PORT, which means TLS.
func endpoint(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil:
		return "", errSecret
	case err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Host == "" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("invalid endpoint; write http://HOST:PORT or https://HOST:PORT")
	}
	return u.Scheme + "://" + u.Host, nil
}

// String returns the address in the form that Parse accepts.
func (a Address) String() string {
	query := url.Values{}
	if a.Endpoint != "" {
		query.Set("endpoint", a.Endpoint)
	}
	if a.Region != "" {
		query.Set("region", a.Region)
	}
	if len(query) == 0 {
		return a.short()
	}
	return a.short() + "?" + strings.ReplaceAll(strings.ReplaceAll(query.Encode(), "%3A", ":"), "%2F", "/")
}

// short returns the address without endpoint and region.
func (a Address) short() string {
	if a.Prefix == "" {
		return Scheme + "://" + a.Bucket
	}
	return Scheme + "://" + a.Bucket + "/" + a.Prefix
}

// host returns the host to connect to and whether to use TLS.
func (a Address) host() (host string, secure bool) {
	if a.Endpoint == "" {
		return awsHost, true
	}
	scheme, host, _ := strings.Cut(a.Endpoint, "://")
	return host, scheme == "https"
}

const awsHost = "s3.amazonaws.com"

// region returns the bucket's region; with "", the library queries AWS.
func (a Address) region() string {
	for _, r := range []string{a.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")} {
		if r != "" {
			return r
		}
	}
	if a.Endpoint == "" {
		return ""
	}
	return "us-east-1" // accepted by servers other than AWS
}

func init() {
	store.Register(Scheme, store.Driver{
		Clean: func(text string) (string, error) {
			a, err := Parse(text)
			return a.String(), err
		},
		Open: func(ctx context.Context, text string) (store.Store, error) {
			a, err := Parse(text)
			if err != nil {
				return nil, err
			}
			return Open(ctx, a, Options{})
		},
	})
}
