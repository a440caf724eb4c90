package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/perdure/perdure/internal/proc/transport"
)

var helmProgram = flag.String("helm.program", "", "the helm program, which renders the chart")

const (
	chart     = "../../deploy/helm/perdure"
	manifests = "../../deploy/kubernetes/perdure.yaml"

	kubernetesVersion = "1.36.0" // the version that charts are rendered for
)

// helm renders the chart with the given values.
func helm(t *testing.T, values ...string) []byte {
	t.Helper()
	if *helmProgram == "" {
		t.Skip("needs Helm; make check-kubernetes builds it and runs this test")
	}
	args := []string{"template", "perdure", chart, "--kube-version", kubernetesVersion}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	cmd := exec.Command(*helmProgram, args...)
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm %v: %v: %s", args, err, says.String())
	}
	return out
}

// container contains the tested fields of a pod's container.
type container struct {
	Command []string
	Env     []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	ReadinessProbe struct {
		HTTPGet struct{ Port int } `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
}

// replicated is a replicated job.
type replicated struct {
	Name     string
	Replicas int
	Template struct {
		Spec struct {
			Template struct {
				Spec struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []container
				}
			}
		}
	}
}

// manifest is a Kubernetes object.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		ReplicatedJobs []replicated `yaml:"replicatedJobs"`
	}
}

func readManifests(text []byte) (all []manifest, err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
}

var variableOfPod = regexp.MustCompile(`\$\(\w+\)`)

// runs returns a container's command line in the pod of a replicated job's index-th job, as a kubelet expands it.
func (c *container) runs(index int) (args []string, err error) {
	env := map[string]string{}
	for _, e := range c.Env {
		env["$("+e.Name+")"] = e.Value
		if e.ValueFrom.FieldRef.FieldPath == "metadata.labels['jobset.sigs.k8s.io/job-index']" {
			env["$("+e.Name+")"] = strconv.Itoa(index)
		}
	}
	for _, word := range c.Command {
		args = append(args, variableOfPod.ReplaceAllStringFunc(word, func(name string) string {
			value, known := env[name]
			if !known {
				err = fmt.Errorf("%s is not set", name)
			}
			return value
		}))
	}
	return args, err
}

// flagOf returns the value of a flag on a command line.
func flagOf(args []string, name string) string {
	for _, a := range args {
		if value, is := strings.CutPrefix(a, name+"="); is {
			return value
		}
	}
	return ""
}

// checkPods checks that the pods' command lines are valid, that every pod joins the coordinators at their advertised
// addresses, and that the job's settings are consistent with the pods.
func checkPods(t *testing.T, text []byte) {
	t.Helper()
	all, err := readManifests(text)
	must(t, err)
	asked, joins, sent := "", map[string]bool{}, []string{}
	count := map[string]int{}
	for _, m := range all {
		if job := m.Data["job.yaml"]; job != "" {
			asked = job
		}
		for _, r := range m.Spec.ReplicatedJobs {
			pod := r.Template.Spec.Template.Spec
			c := pod.Containers[0]
			for i := range r.Replicas {
				args, err := c.runs(i)
				if err != nil {
					t.Fatalf("%s: %v", r.Name, err)
				}
				k, err := parseUnit(args)
				if err != nil {
					t.Fatalf("%s: %v: %v", r.Name, args, err)
				}
				name, _, _ := strings.Cut(k.Command(), " ")
				if pod.Grace < 30 || flagOf(args, "--signal-code") != "143" {
					t.Errorf("%s: an evicted pod has %d s of grace and exits with %q", r.Name, pod.Grace,
						flagOf(args, "--signal-code"))
				}
				at := fmt.Sprintf("%s-%s-%d-0.%s:", m.Metadata.Name, r.Name, i, m.Metadata.Name)
				switch tells := flagOf(args, "--advertise"); {
				case name == "coordinator":
					sent = append(sent, tells)
				case name != "host":
					t.Errorf("%s runs %s", r.Name, name)
				case flagOf(args, "--servers") == "1":
					count["servers"]++
					if tells != at+"7100" || c.ReadinessProbe.HTTPGet.Port != 9465 {
						t.Errorf("%s advertises %s, want %s7100; its readiness port is %d", r.Name, tells, at,
							c.ReadinessProbe.HTTPGet.Port)
					}
				default:
					n, err := strconv.Atoi(flagOf(args, "--workers"))
					must(t, err)
					count["workers"] += n
				}
				if join := flagOf(args, "--join"); join != "" {
					must(t, transport.CheckAddress("--join", join))
					joins[join] = true
				}
			}
		}
	}
	if len(joins) != 1 || !joins[strings.Join(sent, ",")] {
		t.Errorf("coordinators advertise %v, but pods join %v", sent, joins)
	}
	file := filepath.Join(t.TempDir(), "job.yaml")
	must(t, os.WriteFile(file, []byte(asked), 0o666))
	job, err := readJob(context.Background(), file)
	if err == nil {
		_, err = job.New()
	}
	if err != nil {
		t.Errorf("invalid job: %v:\n%s", err, asked)
	}
	for what, n := range count {
		if !strings.Contains(asked, fmt.Sprintf("%s: %d\n", what, n)) {
			t.Errorf("pods have %d %s, but the job is:\n%s", n, what, asked)
		}
	}
}

// TestPods: the manifests in deploy contain the pods of a valid job.
func TestPods(t *testing.T) {
	text, err := os.ReadFile(manifests)
	must(t, err)
	checkPods(t, text)
	wrong := bytes.Replace(text, []byte(`--servers=1`), []byte(`--severs=1`), 1)
	all, err := readManifests(wrong)
	must(t, err)
	refused := false
	for _, m := range all {
		for _, r := range m.Spec.ReplicatedJobs {
			args, err := r.Template.Spec.Template.Spec.Containers[0].runs(0)
			must(t, err)
			_, err = parseUnit(args)
			refused = refused || err != nil
		}
	}
	if !refused {
		t.Error("an unknown flag is accepted")
	}
}

// TestManifests: the manifests in deploy equal the chart's output without values.
func TestManifests(t *testing.T) {
	want := helm(t)
	text, err := os.ReadFile(manifests)
	must(t, err)
	if !bytes.Equal(text, want) {
		t.Errorf("%s differs from the chart's output; run make manifests", manifests)
	}
}

// charts are values for which the chart renders different pods.
var charts = map[string][]string{
	"programs": {
		"job=workload: own", "workers.image=registry.example.org/train:1", "workers.program=/opt/bin/perdure",
		"workers.command={/opt/train,--rate,0.1}", "workers.perPod=4",
	},
	"zones": {
		"servers[0].name=a", "servers[0].replicas=2", "servers[0].zone=eu-1a", "servers[1].name=b",
		"servers[1].replicas=2", "servers[1].zone=eu-1b", "spot.enabled=true", "antiAffinity=required",
	},
	"standby": {
		"coordinator.replicas=2", "coordinator.registry=etcd://etcd:2379/jobs/a",
		"coordinator.storage.accessModes={ReadWriteMany}", "restartJob=false", "networkPolicy.enabled=false",
		"coordinator.insecure=true",
	},
}

// TestChart: the chart renders the pods of a valid job with these values.
func TestChart(t *testing.T) {
	for name, values := range charts {
		t.Run(name, func(t *testing.T) { checkPods(t, helm(t, values...)) })
	}
	if *helmProgram == "" {
		return
	}
	out, err := exec.Command(*helmProgram, "lint", "--strict", chart).CombinedOutput()
	if err != nil {
		t.Errorf("helm lint: %v: %s", err, out)
	}
	shared := "coordinator.replicas is more than 1: set "
	for values, says := range map[string]string{
		"coordinator.replicas=2":                                   shared,
		"coordinator.registry=etcd://a:1/b,coordinator.replicas=2": shared,
		"notice.servers=120":                                       "notice.servers is not less than ",
		"notice.workers=25,gracePeriod.workers=20":                 "notice.workers is not less than ",
	} {
		out, err := exec.Command(*helmProgram, "template", "perdure", chart, "--kube-version",
			kubernetesVersion, "--set", values).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("%s: %v: %s", values, err, out)
		}
	}
}
