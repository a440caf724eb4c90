package metrics_test

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// rule is an entry of Prometheus's relabel_configs. The page uses the actions keep and replace.
type rule struct {
	Sources     []string `yaml:"source_labels"`
	Separator   string
	Regex       string
	Replacement string
	Target      string `yaml:"target_label"`
	Action      string
}

// scraped is an entry of Prometheus's scrape_configs.
type scraped struct {
	Name   string `yaml:"job_name"`
	Static []struct {
		Targets []string
		Labels  map[string]string
	} `yaml:"static_configs"`
	Pods    []struct{ Role string } `yaml:"kubernetes_sd_configs"`
	Relabel []rule                  `yaml:"relabel_configs"`
}

// configured returns the scrape configurations in the user documentation.
func configured(t *testing.T) (all []scraped) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guide", "watch.md"))
	must(t, err)
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		var c struct {
			Scrapes []scraped `yaml:"scrape_configs"`
		}
		d := yaml.NewDecoder(strings.NewReader(block[1]))
		d.KnownFields(true)
		must(t, d.Decode(&c))
		all = append(all, c.Scrapes...)
	}
	return all
}

// relabel applies relabel rules to labels as Prometheus does, and reports whether the target is kept.
func relabel(t *testing.T, rules []rule, labels map[string]string) bool {
	t.Helper()
	for _, r := range rules {
		values := make([]string, 0, len(r.Sources))
		for _, name := range r.Sources {
			values = append(values, labels[name])
		}
		text := strings.Join(values, cmp.Or(r.Separator, ";"))
		whole := regexp.MustCompile("^(?s:" + cmp.Or(r.Regex, "(.*)") + ")$")
		matches := whole.FindStringSubmatchIndex(text)
		switch {
		case r.Action == "keep" && matches == nil:
			return false
		case r.Action == "keep" || matches == nil:
		case r.Action == "":
			labels[r.Target] = string(whole.ExpandString(nil, cmp.Or(r.Replacement, "$1"), text, matches))
		default:
			t.Fatalf("the test does not support action %s", r.Action)
		}
	}
	return true
}

// TestConfigured checks that, with the documented configuration, every process has the labels that the dashboard and
// the alerts depend on, both on machines and in the chart's pods.
func TestConfigured(t *testing.T) {
	all := configured(t)
	if len(all) != 2 || len(all[0].Static) == 0 || len(all[1].Pods) != 1 || all[1].Pods[0].Role != "pod" {
		t.Fatalf("the page has %+v", all)
	}
	for _, s := range all[0].Static {
		l := s.Labels
		if len(s.Targets) != 1 || len(l) != 3 || l["job"] != "first" || l["role"] == "" || l["id"] == "" {
			t.Errorf("a target %+v", s)
		}
	}
	const label = "__meta_kubernetes_pod_label_"
	for _, c := range []struct{ component, group, port, want string }{
		{"coordinator", "coordinator", "metrics", "coordinator training-coordinator-1-0"},
		{"coordinator", "coordinator", "job", ""},
		{"server", "a", "metrics", "host training-a-1-0"},
		{"server", "a", "metrics-0", "server training-a-1-0/server-0"},
		{"worker", "workers", "metrics", "host training-workers-1-0"},
		{"worker", "workers", "metrics-2", "worker training-workers-1-0/worker-2"},
	} {
		labels := map[string]string{
			"job":                                           all[1].Name,
			label + "app_kubernetes_io_name":                "perdure",
			label + "app_kubernetes_io_instance":            "training",
			label + "app_kubernetes_io_component":           c.component,
			label + "jobset_sigs_k8s_io_jobset_name":        "training",
			label + "jobset_sigs_k8s_io_replicatedjob_name": c.group,
			label + "jobset_sigs_k8s_io_job_index":          "1",
			"__meta_kubernetes_pod_container_port_name":     c.port,
		}
		kept := relabel(t, all[1].Relabel, labels)
		if got := labels["role"] + " " + labels["id"]; kept != (c.want != "") ||
			kept && (got != c.want || labels["job"] != "training") {
			t.Errorf("%+v is %s of job %s; kept: %t", c, got, labels["job"], kept)
		}
	}
	if relabel(t, all[1].Relabel, map[string]string{
		label + "app_kubernetes_io_name": "other", "__meta_kubernetes_pod_container_port_name": "metrics",
	}) {
		t.Error("an unrelated pod is kept")
	}
	// The chart and JobSet set these labels.
	chart, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "kubernetes", "perdure.yaml"))
	must(t, err)
	for _, l := range []string{
		"app.kubernetes.io/name: perdure", "app.kubernetes.io/instance: perdure", "app.kubernetes.io/component: server",
		"jobset.sigs.k8s.io/jobset-name: perdure", "jobset.sigs.k8s.io/replicatedjob-name: workers",
		"metadata.labels['jobset.sigs.k8s.io/job-index']", "{name: metrics-0, containerPort: 9465}",
	} {
		if !strings.Contains(string(chart), l) {
			t.Errorf("the chart's objects have no %s", l)
		}
	}
}
