package system

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// loose returns the permissions of a pod that the product's pods must not have.
func loose(pod corev1.PodSpec) (wrong []string) {
	bad := func(ok bool, what string) {
		if !ok {
			wrong = append(wrong, what)
		}
	}
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	sc := pod.SecurityContext
	bad(sc != nil && is(sc.RunAsNonRoot, true) && sc.RunAsUser != nil && *sc.RunAsUser > 0, "root")
	bad(sc != nil && sc.SeccompProfile != nil && sc.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "any system call")
	bad(!pod.HostNetwork && !pod.HostPID && !pod.HostIPC, "the host's namespaces")
	for _, v := range pod.Volumes {
		bad(v.HostPath == nil, "the host's files")
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		bad(s != nil && is(s.ReadOnlyRootFilesystem, true), "a root that can be written")
		bad(s != nil && is(s.AllowPrivilegeEscalation, false) && !is(s.Privileged, true), "more privileges")
		bad(s != nil && s.Capabilities != nil && slices.Contains(s.Capabilities.Drop, "ALL") && len(s.Capabilities.Add) == 0, "capabilities")
		bad(s != nil && s.RunAsUser == nil && !is(s.RunAsNonRoot, false), "root in a container")
		bad(!strings.HasSuffix(strings.Join(c.Command[:min(1, len(c.Command))], ""), "sh"), "a shell")
		bad(c.Resources.Limits.Memory() != nil && !c.Resources.Limits.Memory().IsZero(), "all memory")
	}
	return wrong
}

// alone returns a pod without the container of Envoy Gateway. Security options that a pod normally sets for all its
// containers move from the product's container to the pod.
func alone(pod corev1.PodSpec) corev1.PodSpec {
	ours := slices.DeleteFunc(slices.Clone(pod.Containers), func(c corev1.Container) bool { return c.Name == "envoy-gateway" })
	if len(ours) == len(pod.Containers) || len(ours) != 1 || ours[0].SecurityContext == nil {
		return pod
	}
	s := ours[0].SecurityContext.DeepCopy()
	pod.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: s.RunAsNonRoot, RunAsUser: s.RunAsUser, SeccompProfile: s.SeccompProfile}
	s.RunAsNonRoot, s.RunAsUser = nil, nil
	ours[0].SecurityContext, pod.Containers = s, ours
	return pod
}

// installed returns the pods of every installation method: each profile of the chart, rendered with the real helm,
// and the manifests.
func installed(t *testing.T) map[string]corev1.PodSpec {
	t.Helper()
	pods := map[string]corev1.PodSpec{}
	read := func(from, manifests string) {
		t.Helper()
		for doc := range strings.SplitSeq("\n"+manifests, "\n---") {
			_, doc, _ = strings.Cut(doc, "\n")
			var o struct {
				Kind     string
				Metadata metav1.ObjectMeta
				Spec     struct {
					Template             corev1.PodTemplateSpec
					VolumeClaimTemplates []corev1.PersistentVolumeClaim
				}
			}
			var kind struct{ Kind string }
			if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
				t.Fatalf("%s: %v", from, err)
			}
			if !slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "Job"}, kind.Kind) {
				if kind.Kind == "Pod" || kind.Kind == "CronJob" || kind.Kind == "ReplicaSet" {
					var pod struct{ Spec corev1.PodSpec }
					if err := yaml.Unmarshal([]byte(doc), &pod); err != nil || kind.Kind != "Pod" {
						t.Fatalf("%s: a %s is not looked at: %v", from, kind.Kind, err)
					}
					pods[fmt.Sprintf("%s: Pod %d", from, len(pods))] = pod.Spec
				}
				continue
			}
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				t.Fatalf("%s: %v", from, err)
			}
			pod := alone(o.Spec.Template.Spec)
			for _, claim := range o.Spec.VolumeClaimTemplates { // its controller creates one for each pod
				pod.Volumes = append(pod.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + o.Metadata.Name + "-0"}}})
			}
			pods[from+": "+o.Kind+" "+o.Metadata.Name] = pod
		}
	}
	profiles, err := filepath.Glob("../../install/testdata/profiles/*.txtar")
	if err != nil || len(profiles) < 4 {
		t.Fatalf("profiles %v, %v", profiles, err)
	}
	bin, err := buildcache.Lookup("helm")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range profiles {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		home := t.TempDir()
		values := filepath.Join(home, "values.yaml")
		if err := os.WriteFile(values, a.Files[0].Data, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), bin, "template", "tailplane", "../../../charts/tailplane", "--namespace", testenv.SystemNamespace, "--values", values)
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("helm: %v: %s", err, out)
		}
		read(strings.TrimSuffix(filepath.Base(path), ".txtar"), string(out))
	}
	manifests, err := filepath.Glob("../../../deploy/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range manifests {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		read(filepath.Base(path), string(b))
	}
	return pods
}

// vulnerable runs the vulnerability scanner on one of the product's programs, with the given database.
func vulnerable(t *testing.T, db, program string) (found bool, out string, err error) {
	t.Helper()
	args := []string{"tool", "-modfile=../../../tools.mod", "govulncheck", "-mode", "binary", program}
	if db != "" {
		args = slices.Insert(args, 3, "-db", db)
	}
	b, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 && strings.Contains(string(b), "Vulnerability #") {
		return true, string(b), nil
	}
	return false, string(b), err
}

// DS-05. An installation contains as little as possible. The image holds one program and no shell. Its pods run
// without root, without host access and without a writable file system. The program on people's machines contains no
// client of a cluster or a tailnet. Generated files are current. No program has a known vulnerability.
//
// Guard: build/Dockerfile, charts/tailplane/templates/_pod.tpl, TestSmallPrograms in layers_test.go, and `go
// generate`.
func TestDS05_WhatIsInstalled(t *testing.T) {
	t.Run("image", func(t *testing.T) {
		b, err := os.ReadFile("../../../build/Dockerfile")
		if err != nil {
			t.Fatal(err)
		}
		runs := func(dockerfile string) (wrong []string) {
			_, last, ok := strings.Cut(dockerfile, "\nFROM scratch\n")
			if !ok || strings.Contains(last, "\nFROM ") {
				wrong = append(wrong, "it is not from scratch")
			}
			user := ""
			for line := range strings.Lines(last) {
				switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word {
				case "RUN", "ADD", "SHELL", "CMD", "HEALTHCHECK":
					wrong = append(wrong, word+" in what runs")
				case "COPY":
					if f := strings.Fields(rest); len(f) != 3 || f[0] != "--from=build" || !slices.Contains([]string{"/tailplaned", "/LICENSE", "/etc/ssl/certs/ca-certificates.crt"}, f[2]) {
						wrong = append(wrong, "it holds "+rest)
					}
				case "USER":
					user, _, _ = strings.Cut(rest, ":")
				}
			}
			if uid, err := strconv.Atoi(user); err != nil || uid < 1000 {
				wrong = append(wrong, "it runs as "+user)
			}
			return wrong
		}
		if wrong := runs(string(b)); len(wrong) > 0 {
			t.Errorf("the image: %v", wrong)
		}
		for what, worse := range map[string]string{ // control
			"a base with a shell": strings.Replace(string(b), "FROM scratch", "FROM alpine", 1),
			"a shell":             strings.Replace(string(b), "USER ", "COPY --from=build /bin/sh /bin/sh\nUSER ", 1),
			"root":                strings.Replace(string(b), "USER 65532:65532", "USER 0", 1),
			"no user":             strings.Replace(string(b), "USER 65532:65532", "", 1),
			"a step in it":        string(b) + "RUN true\n",
		} {
			if worse == string(b) || len(runs(worse)) == 0 {
				t.Errorf("an image with %s is taken for ours", what)
			}
		}
	})

	t.Run("pods", func(t *testing.T) {
		s := attacktest.Start(t)
		const ns = "ds05"
		admit := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
		if err := s.KubeClient.Create(t.Context(), admit); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.KubeClient.Delete(context.WithoutCancel(t.Context()), admit); err != nil {
				t.Error(err)
			}
		})
		for _, name := range []string{"tailplane", "tailplane-access", "tailplane-operator", "tailplane-inject", "tailplane-gateway", "tailplane-plane", "tailplane-proxy", "tailplane-recorder", "tailplane-fleet"} {
			if err := s.KubeClient.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}); err != nil {
				t.Fatal(err)
			}
		}
		taken := func(spec corev1.PodSpec) error {
			spec.PriorityClassName = ""
			return s.KubeClient.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: ns}, Spec: spec}, client.DryRunAll)
		}
		pods := installed(t)
		if len(pods) < 9 { // of four profiles and the manifests
			t.Errorf("%d pods", len(pods))
		}
		for name, pod := range pods {
			if wrong := loose(pod); len(wrong) > 0 {
				t.Errorf("%s: %v", name, wrong)
			}
			if err := taken(pod); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for what, worsen := range map[string]func(*corev1.PodSpec){
				"root": func(p *corev1.PodSpec) { p.SecurityContext.RunAsUser = new(int64(0)) },
				"the host's files": func(p *corev1.PodSpec) {
					p.Volumes = append(p.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
				},
				"the host's network": func(p *corev1.PodSpec) { p.HostNetwork = true },
				"a capability": func(p *corev1.PodSpec) {
					p.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
				},
				"privileges":          func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Privileged = new(true) },
				"a container as root": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.RunAsUser = new(int64(0)) },
				"a writable root":     func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.ReadOnlyRootFilesystem = new(false) },
				"a shell":             func(p *corev1.PodSpec) { p.Containers[0].Command = []string{"/bin/sh"} },
			} {
				worse := *pod.DeepCopy()
				worsen(&worse)
				if len(loose(worse)) == 0 {
					t.Errorf("%s with %s is taken for ours", name, what)
				}
				// The Pod Security Standard does not require the last two.
				if err := taken(worse); err == nil && what != "a writable root" && what != "a shell" {
					t.Errorf("%s with %s: the API server accepts it", name, what)
				}
			}
		}
	})

	t.Run("programs", func(t *testing.T) {
		// tka links one package of client-go, the decoder of kubeconfigs: TestSmallPrograms lists what that may bring.
		heavy := []string{"k8s.io/api", "tailscale.com", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc"}
		for program, want := range map[string]bool{"tka": false, "tailplaned": true} { // the other one is the control
			path, err := buildcache.Lookup(program)
			if err != nil {
				t.Fatal(err)
			}
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			links := false
			for _, m := range info.Deps {
				if slices.Contains(heavy, m.Path) {
					links = true
					if !want {
						t.Errorf("%s links %s", program, m.Path)
					}
				}
			}
			if want && !links {
				t.Errorf("%s links none of %v: this test sees nothing", program, heavy)
			}
			for _, set := range info.Settings {
				if set.Key == "CGO_ENABLED" && set.Value != "0" {
					t.Errorf("%s: %s=%s", program, set.Key, set.Value)
				}
			}
		}
	})

	t.Run("generated code", func(t *testing.T) {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../tools.mod", "controller-gen", "object", "crd", "paths=.", "output:object:dir="+dir, "output:crd:artifacts:config="+dir)
		cmd.Dir = "../../../api/v1alpha1"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("controller-gen: %v\n%s", err, out)
		}
		for made, committed := range map[string][]string{
			"zz_generated.deepcopy.go":      {"../../../api/v1alpha1/zz_generated.deepcopy.go"},
			"tailplane.dev_tkasignins.yaml": {"../../../deploy/crds/tailplane.dev_tkasignins.yaml", "../../../charts/tailplane-crds/files/tailplane.dev_tkasignins.yaml"},
		} {
			want, err := os.ReadFile(filepath.Join(dir, made))
			if err != nil || len(want) < 1000 {
				t.Fatalf("%s: %d bytes, %v", made, len(want), err)
			}
			for _, path := range committed {
				if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
					t.Errorf("%s is not what the generator makes: %v", path, err)
				}
			}
		}
	})

	t.Run("known vulnerabilities", func(t *testing.T) {
		programs := map[string]string{}
		for _, name := range []string{"tka", "tailplaned"} {
			path, err := buildcache.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			programs[name] = path
		}
		// Control: the scanner finds an invented vulnerability in both programs.
		db := t.TempDir()
		for name, text := range map[string]string{
			"index/db.json":        `{"modified": "2026-01-01T00:00:00Z"}`,
			"index/modules.json":   `[{"path": "github.com/spf13/cobra", "vulns": [{"id": "GO-9999-0001", "modified": "2026-01-01T00:00:00Z"}]}]`,
			"ID/GO-9999-0001.json": `{"schema_version": "1.3.1", "id": "GO-9999-0001", "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z", "summary": "made up", "details": "made up", "affected": [{"package": {"name": "github.com/spf13/cobra", "ecosystem": "Go"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}], "ecosystem_specific": {"imports": [{"path": "github.com/spf13/cobra", "symbols": ["Command.ExecuteContext"]}]}}], "database_specific": {"url": "https://pkg.go.dev/vuln/GO-9999-0001"}}`,
		} {
			path := filepath.Join(db, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name, path := range programs {
			switch found, out, err := vulnerable(t, "file://"+db, path); {
			case err != nil:
				t.Fatalf("%s: the invented vulnerability: %v", name, err)
			case !found:
				t.Fatalf("%s: the invented vulnerability: found is false, %v, out = %s", name, err, out)
			case !strings.Contains(out, "GO-9999-0001"):
				t.Fatalf("%s: the invented vulnerability: out = %q does not contain %q", name, out, "GO-9999-0001")
			}
		}
		for name, path := range programs {
			found, out, err := vulnerable(t, "", path)
			if err != nil && strings.Contains(out, "vuln.go.dev") {
				t.Skip("SKIP known vulnerabilities: the Go vulnerability database cannot be reached from here")
			}
			if err != nil || found {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	})

	t.Run("releases", func(t *testing.T) { attacktest.Missing(t, "signature, SBOM and provenance") })
}
