package days

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Jobs of a pipeline work on short-lived tagged nodes, without settings: one ends in order, one is killed. Neither leaves anything in a
// cluster, and people see nothing of them.
func TestDay_ACIJob(t *testing.T) { inEachWorld(t, aCIJob) }

func aCIJob(t *testing.T, w *world) {
	laptop := w.device(t, "laptop", alice)
	build, deploy, stranger := w.runner(t, w.east, "runner-1", "tag:ci"), w.runner(t, w.west, "runner-2", "tag:ci"), w.runner(t, w.east, "runner-3", "tag:other")
	build.Vars = append(build.Vars, "TKA_CLUSTER=east", "TKA_SESSION=build-7")
	deploy.Vars = append(deploy.Vars, "TKA_CLUSTER=west")
	run(t, laptop, 0, "tka login --use")
	onLaptop := row(alice, "laptop", "-", "view")
	building, deploying := row("node:runner-1."+w.east.Net.Suffix(), "runner-1", "build-7", "edit"), row("node:runner-2."+w.east.Net.Suffix(), "runner-2", "-", "edit")

	// The environment alone says where a job works.
	type login struct {
		Kind, Cluster, Session, Role, Context string
		Namespaces                            []string
	}
	if diff := cmp.Diff(login{"Login", "east", "build-7", "edit", "tka-east-build-7", []string{"shop"}}, answer[login](t, build, 0, "tka login -o json")); diff != "" {
		t.Errorf("the build's login (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(login{"Login", "west", "", "edit", "tka-west", []string{"shop"}}, answer[login](t, deploy, 0, "tka login --use -o json")); diff != "" {
		t.Errorf("the deployment's login (-want +got):\n%s", diff)
	}
	w.sees(t, "both jobs work", []string{onLaptop, building}, []string{deploying})
	run(t, build, 0, "kubectl --context tka-east-build-7 create configmap built -n shop")
	run(t, deploy, 0, "kubectl create configmap deployed -n shop")
	refused(t, build, "kubectl --context tka-east-build-7 create configmap built -n default")
	refused(t, build, "kubectl --context tka-east-build-7 get secrets -n kube-system")
	type signins struct {
		Items []struct{ Cluster, Session, State string }
	}
	want := signins{[]struct{ Cluster, Session, State string }{{"east", "build-7", "ready"}}}
	if diff := cmp.Diff(want, answer[signins](t, build, 0, "tka status -o json")); diff != "" {
		t.Errorf("the build's status (-want +got):\n%s", diff)
	}
	shows(t, laptop, "tka status", `^east +alice@example.com +view`)
	if out := run(t, laptop, 0, "tka status"); strings.Contains(out, "build-7") {
		t.Errorf("the laptop sees the job:\n%s", out)
	}

	server := strings.TrimPrefix(build.Vars[0], "TKA_SERVER=")

	// What cannot work has an exit code and an error that a program reads.
	for _, tt := range []struct {
		why, command string
		p            *testenv.Person
		exit         int
		code         string
	}{
		{"a tag without a grant", "tka login -o json", stranger, 3, "tagged_node"},
		{"another cluster than the server's", "tka login --server " + server + " --cluster west -o json", build, 3, ""},
		{"a role that is not granted", "tka login --role admin -o json", build, 3, "role_not_granted"},
		{"not signed in", "tka status --session other -o json", build, 3, "not_signed_in"},
		{"no such server", "tka login --server 127.0.0.1:1 -o json", build, 5, ""},
	} {
		type failure struct{ Kind, Code string }
		if diff := cmp.Diff(failure{"Error", tt.code}, answer[failure](t, tt.p, tt.exit, tt.command)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
	stranger.Vars = append(stranger.Vars, "TKA_CLUSTER=not a name")
	run(t, stranger, 2, "tka login")
	run(t, build, 2, "tka login --no-such-flag")
	w.sees(t, "after what failed", []string{onLaptop, building}, []string{deploying})

	// One job signs out, the other is killed with its node.
	run(t, build, 0, "tka logout -o json")
	w.sees(t, "after the build", []string{onLaptop}, []string{deploying})
	refused(t, build, "kubectl --context tka-east-build-7 get pods -n shop")
	run(t, deploy, 0, "kubectl get pods -n shop")
	w.east.Leave(deploy)
	w.becomes(t, "after the deployment", []string{onLaptop}, nil)
	run(t, laptop, 0, "kubectl get pods -n shop")
	run(t, laptop, 0, "tka logout")
	w.sees(t, "at night", nil, nil)
	for _, env := range []*testenv.Env{w.east, w.west} {
		eventually(t, "nothing remains at "+env.Server(), func() bool {
			out, errs, exit := kubetest.Kubectl(t.Context(), env.Cluster.Kubeconfig, "get", "serviceaccounts,rolebindings,clusterrolebindings", "-A", "-l", "tailplane.dev/signin-uid", "-o", "name")
			if exit != 0 {
				t.Fatal(errs)
			}
			return out == ""
		})
	}
}

// runner adds a tagged node without settings, except that servers without certificates must be named there.
func (w *world) runner(t *testing.T, at *testenv.Env, host, tag string) *testenv.Person {
	t.Helper()
	p := w.deviceOf(t, at, host, "", tag)
	_, name, _ := strings.Cut(at.Server(), "://")
	if w.tailnet.Headscale {
		name, _, _ = strings.Cut(name, ".") // as in the settings
	} else if err := os.Remove(filepath.Join(p.Home, ".config/tka/config.yaml")); err != nil {
		t.Fatal(err)
	}
	p.Vars = []string{"TKA_SERVER=" + name}
	return p
}

// answer runs a command line and returns its JSON: standard output, or after a failure the error at the end of standard error.
func answer[T any](t *testing.T, p *testenv.Person, want int, command string) (v T) {
	t.Helper()
	words := strings.Fields(command)
	r, err := p.Run(t.Context(), words[0], words[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s: exit %d, want %d\n%s", command, r.Exit, want, r.Both)
	}
	text := r.Stdout
	if want != 0 {
		text = r.Stderr[max(0, strings.Index(r.Stderr, "{")):]
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%s: %v\nstdout: %s\nstderr: %s", command, err, r.Stdout, r.Stderr)
	}
	return v
}
