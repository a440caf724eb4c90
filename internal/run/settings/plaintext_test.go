package settings

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry/etcd"
)

// TestEtcdScheme checks that the scheme in this package is that of the etcd client.
func TestEtcdScheme(t *testing.T) {
	if etcdScheme != etcd.Scheme+"://" {
		t.Errorf("settings has scheme %s for etcd, whose client has %s://", etcdScheme, etcd.Scheme)
	}
}

// TestServicesExposed checks that services which others on the network can read are reported in one line without
// secrets, and that the job is rejected unless the user allows that.
func TestServicesExposed(t *testing.T) {
	for _, c := range []struct {
		registry, store, log, ca string
		want                     string // "": no warning
	}{
		{"", "", "", "", ""},
		{"/srv/jobs", "file:///srv/store", "", "", ""},
		{"etcd://127.0.0.1:1,[::1]:2,localhost:3/p", "s3://bucket/p?endpoint=http://127.0.0.1:9000", "", "", ""},
		{
			"etcd://10.0.0.1:2379/p?ca=/ca.pem", "s3://bucket/p?endpoint=https://minio:9000", "tls://log:4222", "", "",
		},
		{"etcd://10.0.0.1:2379/p?cert=/c.pem&key=/k.pem", "s3://bucket/p", "perdure://log:4222", "", ""},
		{"", "s3://bucket/p?endpoint=minio:9000", "nats://s3cret@log:4222", "/ca.pem", ""},
		{"etcd://127.0.0.1:2379,10.0.0.1:2379/p", "", "", "", "the registry etcd://127.0.0.1:2379,10.0.0.1:2379/p ("},
		{"", "s3://bucket/p?endpoint=http://minio:9000", "", "", "the store http://minio:9000 ("},
		{"", "", "nats://s3cret@log:4222", "", "the update log nats://"},
		{"", "", "nats://127.0.0.1:4222,nats://u:s3cret@log:4222", "", "the update log nats://"},
		{"", "", "nats://127.0.0.1:4222", "", ""},
		{
			"etcd://[fd00::1]:2379/p", "s3://bucket/p?endpoint=http://minio", "nats://log:4222", "",
			"registry etcd://[fd00::1]:2379/p (set its certificate authority with ?ca=FILE) or to the store " +
				"http://minio (write https://) or to the update log nats://log:4222 (write tls://): ",
		},
	} {
		s := Services{Registry: c.registry, Store: c.store, Log: &Log{NATS: c.log, CA: c.ca}}
		refused, err := s.ExposureWarning(&Reach{Keys: "keys"})
		says, fine := s.ExposureWarning(&Reach{Insecure: true})
		if fine != nil || refused != "" || (says == "") != (err == nil) {
			t.Fatalf("%+v: %q, %v, %q, %v", c, refused, err, says, fine)
		}
		if err == nil {
			err = errors.New("")
		} else if !errors.Is(err, perdure.ErrUsage) || !strings.HasPrefix(says, "INSECURE: ") {
			t.Errorf("%+v: %q, %v", c, says, err)
		}
		for _, text := range []string{says, err.Error()} {
			if (text == "") != (c.want == "") || !strings.Contains(text, c.want) || strings.ContainsAny(text, "\n") ||
				strings.Contains(text, "s3cret") {
				t.Errorf("%+v: %q", c, text)
			}
		}
	}
}
