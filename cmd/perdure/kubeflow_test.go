package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestKubeflow: the pods of deploy/kubeflow run valid commands, and the job has as many slots as the TrainJob starts.
func TestKubeflow(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubeflow/runtime.yaml")
	must(t, err)
	var runtime struct {
		Spec struct{ Template manifest }
	}
	must(t, yaml.Unmarshal(text, &runtime))
	servers := 0
	for _, r := range runtime.Spec.Template.Spec.ReplicatedJobs {
		c := r.Template.Spec.Template.Spec.Containers[0]
		if c.Command[0] == "python" { // as python -m perdure launch does
			at := slices.IndexFunc(c.Command, func(s string) bool { return strings.HasSuffix(s, ".py") })
			flags, program := c.Command[4:at], c.Command[at:]
			c.Command = slices.Concat([]string{"/usr/local/bin/perdure", "host"}, flags, []string{"--"}, program)
		}
		args, err := c.runs(0)
		must(t, err)
		if _, err := parseUnit(args); err != nil {
			t.Errorf("%s: %v: %v", r.Name, args, err)
		}
		if r.Name == "servers" {
			servers = r.Replicas
		}
	}
	text, err = os.ReadFile("../../deploy/kubeflow/trainjob.yaml")
	must(t, err)
	all, err := readManifests(text)
	must(t, err)
	file := filepath.Join(t.TempDir(), "job.yaml")
	must(t, os.WriteFile(file, []byte(all[0].Data["job.yaml"]), 0o666))
	job, err := readJob(context.Background(), file)
	must(t, err)
	spec, err := job.New()
	must(t, err)
	var of struct {
		Spec struct {
			Trainer struct {
				Nodes     int `yaml:"numNodes"`
				Processes int `yaml:"numProcPerNode"`
			}
		}
	}
	_, last, _ := strings.Cut(string(text), "kind: TrainJob")
	must(t, yaml.Unmarshal([]byte(last), &of))
	if slots := of.Spec.Trainer.Nodes * of.Spec.Trainer.Processes; spec.InitialWorkers() != slots {
		t.Errorf("the job has %d slots, but %d learners", spec.InitialWorkers(), slots)
	}
	if spec.Job.Servers != servers {
		t.Errorf("the job has %d servers, but the runtime %d", spec.Job.Servers, servers)
	}
}
