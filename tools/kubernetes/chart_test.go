// Package kubernetes tries the chart of deploy/helm with what Kubernetes itself is made of: the types of its objects,
// and for the JobSet what an API server asks before it stores one: JobSet's definition, with the API server's own code
// for resources that are defined, and JobSet's webhooks. Then JobSet's controller works on what was stored, in memory.
// What an API server asks of the values of its own kinds, such as budgets and the pods of jobs, is not tried here. The
// script that builds the image is tried, too.
package kubernetes

import (
	"bytes"
	"flag"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

var helmProgram = flag.String("helm.program", "", "Helm")

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, batchv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, jobset.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}()

// variants are values with which the chart is made.
var variants = map[string][]string{
	"default": nil,
	"programs": {
		"workers.image=registry.example.org/train:1", "workers.command={/opt/train,--rate,0.1}", "workers.perPod=4",
		"workers.volumes[0].name=data", "workers.volumes[0].emptyDir.medium=Memory", "workers.env[0].name=A",
		"workers.env[0].value=b", "workers.volumeMounts[0].name=data", "workers.volumeMounts[0].mountPath=/data",
		"workers.resources.limits.nvidia\\.com/gpu=1", "imagePullSecrets[0].name=registry",
	},
	"zones": {
		"servers[0].name=a", "servers[0].replicas=2", "servers[0].zone=eu-1a", "servers[1].name=b",
		"servers[1].replicas=2", "servers[1].zone=eu-1b", "spot.enabled=true", "antiAffinity=required",
		"serverPods.tolerations[0].key=x", "serverPods.tolerations[0].operator=Exists",
		"serverPods.nodeSelector.disk=fast", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b",
	},
	"standby": {
		"coordinator.replicas=2", "coordinator.registry=etcd://etcd:2379/jobs/a", "restartJob=false",
		"coordinator.storage.accessModes={ReadWriteMany}", "coordinator.storage.className=shared",
		"coordinator.volumes[0].name=etcd", "coordinator.volumes[0].secret.secretName=etcd-client",
		"coordinator.volumeMounts[0].name=etcd", "coordinator.volumeMounts[0].mountPath=/etc/etcd",
		"serverPods.volumes[0].name=store", "serverPods.volumes[0].secret.secretName=store",
		"serverPods.volumeMounts[0].name=store", "serverPods.volumeMounts[0].mountPath=/etc/store",
	},
	"own claim": {"coordinator.storage.existingClaim=mine", "networkPolicy.enabled=false"},
}

// made is what the chart makes with some values, decoded strictly: a field that is not there is refused.
func made(t *testing.T, values ...string) (all []runtime.Object) {
	t.Helper()
	if *helmProgram == "" {
		t.Skip("not tried: there is no Helm; make check-kubernetes builds it")
	}
	args := []string{"template", "perdure", "../../deploy/helm/perdure", "--kube-version", "1.36.0"}
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
	for _, text := range strings.Split("\n"+string(out), "\n---\n") {
		o, err := decode(text)
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if o != nil {
			all = append(all, o)
		}
	}
	return all
}

func decode(text string) (runtime.Object, error) {
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil || kind.Kind == "" {
		return nil, err
	}
	o, err := scheme.New(schemaOf(kind.APIVersion, kind.Kind))
	if err != nil {
		return nil, err
	}
	return o, yaml.UnmarshalStrict([]byte(text), o)
}

// jobSetOf is the JobSet among objects.
func jobSetOf(t *testing.T, all []runtime.Object) *jobset.JobSet {
	t.Helper()
	for _, o := range all {
		if js, is := o.(*jobset.JobSet); is {
			js.Namespace, js.UID = "default", "of-the-test"
			return js
		}
	}
	t.Fatal("there is no JobSet")
	return nil
}

// TestStrict: every object has fields that are there, and there is one of each that a job needs.
func TestStrict(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			count := map[string]int{}
			for _, o := range made(t, values...) {
				count[strings.TrimPrefix(fmt.Sprintf("%T", o), "*")]++
			}
			budgets := len(jobSetOf(t, made(t, values...)).Spec.ReplicatedJobs)
			if count["v1alpha2.JobSet"] != 1 || count["v1.ConfigMap"] != 1 || count["v1.PodDisruptionBudget"] != budgets {
				t.Errorf("objects: %v", count)
			}
		})
	}
	if _, err := decode("apiVersion: v1\nkind: ConfigMap\ndate: {}\n"); err == nil {
		t.Error("a field that is not there is taken")
	}
}

// TestBudgets: of each group one pod may be evicted when all of it that can be ready is, and of servers and workers no
// second one with it. Of coordinators one leads, and is ready; the others stand by, and are not.
func TestBudgets(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			all, budgets := made(t, values...), map[string]*policyv1.PodDisruptionBudget{}
			for _, o := range all {
				if b, is := o.(*policyv1.PodDisruptionBudget); is {
					budgets[b.Spec.Selector.MatchLabels["jobset.sigs.k8s.io/replicatedjob-name"]] = b
				}
			}
			for _, r := range jobSetOf(t, all).Spec.ReplicatedJobs {
				ready := int(r.Replicas)
				if r.Name == "coordinator" {
					ready = 1
				}
				b := budgets[r.Name]
				if b == nil || b.Spec.Selector.MatchLabels["jobset.sigs.k8s.io/jobset-name"] != "perdure" {
					t.Fatalf("%s has no budget", r.Name)
				}
				if may := ready - b.Spec.MinAvailable.IntValue(); may != 1 || b.Spec.MaxUnavailable != nil {
					t.Errorf("of %s, of which %d are ready, %d may be evicted, want 1", r.Name, ready, may)
				}
			}
		})
	}
}

// TestMounts: what a pod mounts is a volume of it, and all volumes are mounted; the roles' own volumes are of their
// pods.
func TestMounts(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			own := map[string]string{}
			for _, v := range values {
				if role, volume, is := strings.Cut(v, ".volumes[0].name="); is {
					own[map[string]string{"coordinator": "coordinator", "serverPods": "server", "workers": "worker"}[role]] = volume
				}
			}
			for _, r := range jobSetOf(t, made(t, values...)).Spec.ReplicatedJobs {
				pod := r.Template.Spec.Template
				var has, mounts []string
				for _, v := range pod.Spec.Volumes {
					has = append(has, v.Name)
				}
				for _, m := range pod.Spec.Containers[0].VolumeMounts {
					mounts = append(mounts, m.Name)
				}
				if !slices.Equal(has, mounts) {
					t.Errorf("%s has %v, and mounts %v", r.Name, has, mounts)
				}
				want := own[pod.Labels["app.kubernetes.io/component"]]
				if want != "" && !slices.Contains(has, want) {
					t.Errorf("%s has %v, and no %s", r.Name, has, want)
				}
			}
		})
	}
}

// TestProbes: a process that is stuck is noticed, from its beginning, within two minutes.
func TestProbes(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			for _, r := range jobSetOf(t, made(t, values...)).Spec.ReplicatedJobs {
				c := r.Template.Spec.Template.Spec.Containers[0]
				if p := c.LivenessProbe; p == nil || p.HTTPGet.Path != "/healthz" || p.PeriodSeconds*p.FailureThreshold > 120 {
					t.Errorf("%s is asked for its health by %v", r.Name, p)
				}
				if p := c.ReadinessProbe; p == nil || p.HTTPGet.Path != "/readyz" {
					t.Errorf("%s is asked whether it is ready by %v", r.Name, p)
				}
				if p := c.StartupProbe; p != nil && max(p.PeriodSeconds, 1)*max(p.FailureThreshold, 1) > 120 {
					t.Errorf("%s may take %d times %d s to start", r.Name, p.FailureThreshold, p.PeriodSeconds)
				}
			}
		})
	}
}

// TestSecure: no pod may do more than it must.
func TestSecure(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			for _, r := range jobSetOf(t, made(t, values...)).Spec.ReplicatedJobs {
				pod := r.Template.Spec.Template.Spec
				s, c := pod.SecurityContext, pod.Containers[0].SecurityContext
				if !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
					*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || c.Capabilities.Drop[0] != "ALL" ||
					*pod.AutomountServiceAccountToken {
					t.Errorf("%s may do too much", r.Name)
				}
				if keys := pod.Volumes[0].Secret; *keys.DefaultMode != 0o400 || *s.FSGroup != *s.RunAsGroup ||
					*s.FSGroupChangePolicy != corev1.FSGroupChangeOnRootMismatch {
					t.Errorf("%s cannot read its keys, or others can", r.Name)
				}
			}
		})
	}
}
