package kubernetes

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	configapi "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime/core"
	trainerhooks "github.com/kubeflow/trainer/v2/pkg/webhooks"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// noIndex drops the indexes that a runtime asks for. No list is read here.
type noIndex struct{}

func (noIndex) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return nil
}

// TestKubeflow: Kubeflow Trainer's own code makes a JobSet from the runtime and the TrainJob in deploy/kubeflow, which
// an API server stores. The learners' pods have PET_… variables, and start what the TrainJob names.
func TestKubeflow(t *testing.T) {
	if err := trainer.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	for _, file := range []string{"runtime", "trainjob"} {
		text, err := os.ReadFile("../../deploy/kubeflow/" + file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(text), "\n---\n") {
			o, err := decode(part)
			if err != nil || o == nil {
				t.Fatalf("%s: %v", file, err)
			}
			objects = append(objects, o.(client.Object))
		}
	}
	runtime := objects[0].(*trainer.ClusterTrainingRuntime)
	job := objects[len(objects)-1].(*trainer.TrainJob)
	group := trainer.GroupVersion.Group
	job.Namespace, job.Spec.RuntimeRef.APIGroup, job.Spec.RuntimeRef.Kind = "default", &group, new("ClusterTrainingRuntime")
	job.UID = "of-the-test"
	ctx := context.Background()
	if _, err := (&trainerhooks.ClusterTrainingRuntimeValidator{}).ValidateCreate(ctx, runtime); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(runtime).Build()
	if _, err := core.NewTrainingRuntime(ctx, c, noIndex{}, &configapi.Configuration{}); err != nil {
		t.Fatal(err)
	}
	of, err := core.NewClusterTrainingRuntime(ctx, c, noIndex{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, wrong := of.ValidateObjects(ctx, nil, job); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	made, err := of.NewObjects(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	js := jobSetFrom(t, made)
	d, err := theDoor()
	if err != nil {
		t.Fatal(err)
	}
	if js, err = d.create(js); err != nil {
		t.Fatal(err)
	}
	for _, r := range js.Spec.ReplicatedJobs {
		pods := r.Replicas * *r.Template.Spec.Parallelism
		if want := map[string]int32{"coordinator": 1, "servers": 3, "node": 2}[r.Name]; pods != want {
			t.Errorf("%s has %d pods, want %d", r.Name, pods, want)
		}
		node := r.Template.Spec.Template.Spec.Containers[0]
		env := map[string]string{}
		for _, e := range node.Env {
			env[e.Name] = e.Value
		}
		if _, ranked := env["PET_NODE_RANK"]; ranked != (r.Name == "node") {
			t.Errorf("%s: %v", r.Name, env)
		}
		if r.Name == "node" && (env["PET_NNODES"] != "2" || env["PET_NPROC_PER_NODE"] != "1" ||
			node.Image != *job.Spec.Trainer.Image || node.Command[2] != "perdure") {
			t.Errorf("%s has image %s, %v, %v", r.Name, node.Image, node.Command, env)
		}
	}
}

// jobSetFrom returns the JobSet among the objects that Kubeflow applies.
func jobSetFrom(t *testing.T, made []apiruntime.ApplyConfiguration) *jobset.JobSet {
	t.Helper()
	for _, m := range made {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := decode(string(text)); err != nil {
			t.Fatal(err)
		} else if js, is := o.(*jobset.JobSet); is {
			return js
		}
	}
	t.Fatal("JobSet is missing")
	return nil
}
