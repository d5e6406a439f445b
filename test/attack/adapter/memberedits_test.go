package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// AD-08. A person who may edit the entry of a cluster tries to make the adapter run a program, read a file, trust a
// foreign authority, or send the credential elsewhere. The adapter refuses the entry and names the field. It keeps
// the last valid configuration, and the other clusters keep working. A wrong certificate affects only that member.
// The adapter never follows a redirect.
//
// Guard: ReadCredential, CheckServer and Parse in internal/multicluster/config; Keeper.Run in internal/multicluster.
func TestAD08_EditedClusters(t *testing.T) {
	h := newEnv(t, func(config string) string {
		return strings.Replace(config, "rules:\n", "rules:\n- {name: only-west, match: {namespaces: [only-west]}, target: {cluster: west}}\n", 1)
	})
	path := map[string]string{"east": "/api/v1/namespaces/only-east/configmaps", "west": "/api/v1/namespaces/only-west/configmaps"}
	serves := func(why, cluster string) {
		t.Helper()
		if code, header, text := h.do(t, "GET", path[cluster], ""); code != http.StatusOK || header.Get("Mca-Cluster") != cluster {
			t.Errorf("%s: %s: %d by %q: %.200s", why, cluster, code, header.Get("Mca-Cluster"), text)
		}
	}
	serves("before", "east")
	serves("before", "west")

	ran := filepath.Join(t.TempDir(), "ran")
	genuine := h.options.Secrets["west"]
	edit := func(files map[string]string) {
		t.Helper()
		folder := h.Secret("west")
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	kubeconfig := func(cluster, user string) map[string]string {
		return map[string]string{"kubeconfig": fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nclusters: [{name: x, cluster: {server: %q, %s}}]\nusers: [{name: x, user: {%s}}]\n", h.west.URL, cluster, user)}
	}
	ca, err := json.Marshal([]byte(genuine["ca.crt"])) // base64, as in a kubeconfig
	if err != nil {
		t.Fatal(err)
	}
	data, token := "certificate-authority-data: "+string(ca), "token: "+genuine["token"]
	for field, files := range map[string]map[string]string{
		"exec":                     kubeconfig(data, "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, args: [-c, 'touch "+ran+"'], interactiveMode: Never}"),
		"auth-provider":            kubeconfig(data, "auth-provider: {name: oidc}"),
		"proxy-url":                kubeconfig(data+", proxy-url: "+h.home.URL, token),
		"tokenFile":                kubeconfig(data, "tokenFile: "+filepath.Join(h.Account, "token")),
		"certificate-authority":    kubeconfig("certificate-authority: /etc/ssl/ca.crt", token),
		"client-key":               kubeconfig(data, "client-certificate: /etc/a, client-key: /etc/b"),
		"insecure-skip-tls-verify": kubeconfig("insecure-skip-tls-verify: true", token),
		"server":                   {"server": "https://169.254.169.254", "ca.crt": genuine["ca.crt"], "token": genuine["token"]},
	} {
		unasked(t, field, []*recordingProxy{h.west, h.home}, func() {
			edit(files)
			code, _, text := h.do(t, "GET", path["west"], "")
			switch told, message := status(text); {
			case code != http.StatusServiceUnavailable:
				t.Errorf("code = %v, want %v; field = %s; text = %.200s", code, http.StatusServiceUnavailable, field, text)
			case told != code:
				t.Errorf("told = %v, want %v; field = %s; text = %.200s", told, code, field, text)
			case !strings.Contains(message, "west"):
				t.Errorf("message = %q does not contain %q; field = %s; text = %.200s", message, "west", field, text)
			}
			if strings.Contains(text, genuine["token"]) {
				t.Errorf("%s: the answer contains the token", field)
			}
			serves(field, "east")
			attacktest.Eventually(t, attacktest.Long, "the log names "+field, func() bool {
				for line := range strings.Lines(h.Output()) {
					if strings.Contains(line, "west") && strings.Contains(line, field) && strings.Contains(line, `"err"`) {
						return true
					}
				}
				return false
			})
		})
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program was run")
	}
	edit(genuine)
	attacktest.Eventually(t, attacktest.Long, "the right Secret is taken", func() bool { code, _, _ := h.do(t, "GET", path["west"], ""); return code == http.StatusOK })

	// In the configuration file.
	for field, change := range map[string][2]string{
		"169.254.169.254":          {"allowLoopback: true, credentials: {secret: west}", `servers: ["https://169.254.169.254"], caFile: west/ca.crt, credentials: {audienceToken: true}`},
		"insecure-skip-tls-verify": {"allowLoopback: true, credentials: {secret: west}", "credentials: {secret: west}, insecure-skip-tls-verify: true"},
	} {
		if err := h.Configure(strings.Replace(h.options.Config, change[0], change[1], 1)); err != nil {
			t.Fatal(err)
		}
		attacktest.Eventually(t, attacktest.Long, "the document is refused", func() bool {
			for line := range strings.Lines(h.Output()) {
				if strings.Contains(line, "the configuration is rejected") && strings.Contains(line, strings.TrimPrefix(field, "169.254.169.254")) && strings.Contains(line, ".yaml") {
					return true
				}
			}
			return false
		})
		serves("the last good document, "+field, "east")
		serves("the last good document, "+field, "west")
	}
	if err := h.Configure(h.options.Config); err != nil {
		t.Fatal(err)
	}

	// A certificate of another authority: only that member is unavailable.
	_, _, stranger := authority(t)
	edit(map[string]string{"server": genuine["server"], "ca.crt": string(stranger), "token": genuine["token"]})
	unasked(t, "a wrong certificate", []*recordingProxy{h.west}, func() {
		if code, _, text := h.do(t, "GET", path["west"], ""); code != http.StatusServiceUnavailable {
			t.Errorf("a wrong certificate: %d %.200s", code, text)
		}
		serves("a wrong certificate", "east")
	})
	edit(genuine)
	attacktest.Eventually(t, attacktest.Long, "it is trusted again", func() bool { code, _, _ := h.do(t, "GET", path["west"], ""); return code == http.StatusOK })

	// A redirect is passed on as an answer or counts as a failure of the member; the adapter never follows it.
	elsewhere := newOrigin(t, nil)
	h.west.play(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/configmaps") {
			return false
		}
		w.Header().Set("Location", elsewhere.URL+r.URL.Path)
		w.WriteHeader(http.StatusTemporaryRedirect)
		return true
	})
	elsewhere.quietly(t, "a redirect", func() {
		for _, at := range []string{path["west"], "/api/v1/namespaces/" + h.namespace + "/configmaps", "/api/v1/namespaces/" + h.namespace + "/configmaps/x", "/api/v1/namespaces/" + h.namespace + "/configmaps?watch=1"} {
			if code, _, text := h.do(t, "GET", at, ""); code < 300 || code == http.StatusNotFound {
				t.Errorf("%s: %d %.200s", at, code, text)
			}
		}
	})
}

// AD-10. The adapter refuses a request that would delete or change objects in several clusters at once, with any
// selector, unless a rule allows it for that verb. A request that names one object goes to one cluster.
//
// Guard: noDeleteCollection in internal/apiproxy; Visit.deleteAll in internal/multicluster.
func TestAD10_ManyAtOnce(t *testing.T) {
	h := newEnv(t, nil)
	path := "/api/v1/namespaces/" + h.namespace + "/configmaps"
	label := func(cluster, name, set string) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"set": set}}}
		if _, err := h.real[cluster].kube.CoreV1().ConfigMaps(h.namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, cluster := range []string{"east", "west"} {
		label(cluster, "a-of-"+cluster, "a")
		label(cluster, "b-of-"+cluster, "b")
	}
	there := func() string {
		var all []string
		for _, name := range []string{"a-of-east", "a-of-west", "b-of-east", "b-of-west"} {
			if h.in(t, h.namespace, name) != "" {
				all = append(all, name)
			}
		}
		return strings.Join(all, " ")
	}
	everything := there()
	fronts := []*recordingProxy{h.home, h.east, h.west}
	before := make([]int, len(fronts))
	for i, f := range fronts {
		before[i] = len(f.arrived())
	}
	for _, tt := range []struct{ method, path, kind string }{
		{"DELETE", path, ""}, {"DELETE", path + "?labelSelector=set%3Da", ""}, {"DELETE", path + "?fieldSelector=metadata.name%3Da-of-east", ""},
		{"DELETE", path + "?dryRun=All", ""}, {"DELETE", path + "/", ""}, {"DELETE", "/api/v1/configmaps", ""}, {"DELETE", "/api/v1/configmaps?labelSelector=set%3Da", ""},
		{"PATCH", path, "application/merge-patch+json"}, {"PATCH", path + "?labelSelector=set%3Da", "application/merge-patch+json"},
		{"PATCH", path + "?fieldManager=x", "application/apply-patch+yaml"}, {"PUT", path, "application/json"}, {"PATCH", "/api/v1/configmaps", "application/merge-patch+json"}, {"PUT", "/api/v1/configmaps", "application/json"},
	} {
		pairs, body := []string{}, ""
		if tt.kind != "" {
			pairs, body = []string{"Content-Type", tt.kind}, `{"metadata":{"annotations":{"was":"here"}}}`
		}
		code, _, text := h.do(t, tt.method, tt.path, body, pairs...)
		if told, _ := status(text); code != http.StatusMethodNotAllowed && code != http.StatusBadRequest || told != code {
			t.Errorf("%s %s: %d %.200s", tt.method, tt.path, code, text)
		}
	}
	for i, f := range fronts {
		for _, a := range f.arrived()[before[i]:] {
			// The home cluster receives requests for types that no API server has, and answers that itself.
			if a.Method == "DELETE" || f != h.home && strings.Contains(a.URI, "/configmaps") {
				t.Errorf("a cluster received %s %s", a.Method, a.URI)
			}
		}
	}
	if now := there(); now != everything {
		t.Errorf("left: %s", now)
	}
	// kubectl finds the objects and deletes them one by one, each in its cluster.
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	if _, errs, exit := kubetest.Kubectl(ctx, h.Kubeconfig, "delete", "cm", "-l", "set=a"); exit != 0 {
		t.Error(errs)
	}
	if now := there(); now != "b-of-east b-of-west" {
		t.Errorf("after kubectl delete -l: %s", now)
	}
	// With a rule that allows it.
	for _, cluster := range []string{"east", "west"} {
		label(cluster, "a-of-"+cluster, "a")
	}
	h.options.Config = strings.Replace(h.options.Config, "strategy: hash\n", "strategy: hash\n      deleteCollection: all\n", 1)
	all := h.adapter(t)
	if code, _, text := all.do(t, "DELETE", path+"?labelSelector=set%3Db", ""); code != http.StatusOK || there() != "a-of-east a-of-west" {
		t.Errorf("according to the rule: %d %.200s, left: %s", code, text, there())
	}
	if code, _, text := all.do(t, "PATCH", path, `{}`, "Content-Type", "application/merge-patch+json"); code/100 == 2 {
		t.Errorf("only deletion was meant: %d %.200s", code, text)
	}
}

// AD-11. A child is created in one cluster and its owner is in another. With ownerReferences set to shelter, the
// garbage collector of the child's cluster does not delete the child as an orphan. A client reads back the owner
// reference that it wrote. Without that setting the adapter refuses the child.
//
// Guard: internal/multicluster, and where internal/multicluster calls it; KeepTogether and Place in
// internal/apiproxy.
func TestAD11_AnOwnerElsewhere(t *testing.T) {
	h := newEnv(t, func(config string) string {
		return config + "- name: children\n  match: {apiGroups: [\"\"], resources: [secrets], namespaces: [" + strings.TrimSpace(between(config, "namespaces: [", "]", 2)) + "]}\n  target: {spread: {members: [east, west], ownerReferences: shelter}}\n"
	})
	owner, err := h.kube(t).CoreV1().ConfigMaps(h.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Labels: map[string]string{"tier": "iron"}}}, metav1.CreateOptions{})
	if err != nil || h.in(t, h.namespace, "owner") != "east" {
		t.Fatal(err)
	}
	child := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mca.tailplane.dev/cluster": "west"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: new(true)}}}}
	}
	west := h.real["west"].kube.CoreV1().Secrets(h.namespace)
	secrets := h.kube(t).CoreV1().Secrets(h.namespace)
	made, err := secrets.Create(t.Context(), child("sheltered"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := func(why string, s *corev1.Secret, err error) {
		t.Helper()
		switch {
		case err != nil:
			t.Errorf("%s: its owners: %v", why, err)
		case len(s.OwnerReferences) != 1:
			t.Errorf("%s: its owners: len(s.OwnerReferences) = %v, want 1", why, len(s.OwnerReferences))
		case s.OwnerReferences[0].UID != owner.UID:
			t.Errorf("%s: its owners: s.OwnerReferences[0].UID = %q, want %q", why, s.OwnerReferences[0].UID, owner.UID)
		}
	}
	owned("as made", made, nil)
	stored, err := west.Get(t.Context(), "sheltered", metav1.GetOptions{})
	if err != nil || len(stored.OwnerReferences) > 0 {
		t.Errorf("stored with the owners %v: %v", stored.OwnerReferences, err)
	}
	// Control: without the adapter, the garbage collector deletes such a child.
	if _, err := west.Create(t.Context(), child("bare"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.Long, "the garbage collector takes the orphan", func() bool {
		_, err := west.Get(t.Context(), "bare", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	made.Labels["touched"] = "yes"
	made, err = secrets.Update(t.Context(), made, metav1.UpdateOptions{})
	owned("as updated", made, err)
	got, err := secrets.Get(t.Context(), "sheltered", metav1.GetOptions{})
	owned("as read", got, err)
	l, err := secrets.List(t.Context(), metav1.ListOptions{LabelSelector: "touched"})
	if err != nil || len(l.Items) != 1 {
		t.Fatalf("%v, %v", l, err)
	}
	owned("as listed", &l.Items[0], nil)
	// A second orphan, for the garbage collector to delete after the update.
	if _, err := west.Create(t.Context(), child("bare"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.Long, "the garbage collector takes it, too", func() bool {
		_, err := west.Get(t.Context(), "bare", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if still, err := west.Get(t.Context(), "sheltered", metav1.GetOptions{}); err != nil || still.UID != made.UID {
		t.Errorf("the garbage collector deleted the child: %v", err)
	}

	// Without the setting: the child is placed in the cluster of its owner, or refused.
	h.options.Config = strings.Replace(h.options.Config, ", ownerReferences: shelter", "", 1)
	follows := h.adapter(t)
	next := follows.kube(t).CoreV1().Secrets(h.namespace)
	free := child("follows")
	free.Labels = nil
	if _, err := next.Create(t.Context(), free, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := h.real["east"].kube.CoreV1().Secrets(h.namespace).Get(t.Context(), "follows", metav1.GetOptions{}); err != nil {
		t.Errorf("it is not with its owner: %v", err)
	}
	fixed := strings.Replace(h.options.Config, "target: {spread: {members: [east, west]}}", "target: {cluster: west}", 1)
	if fixed == h.options.Config {
		t.Fatal("the configuration does not have the expected target")
	}
	h.options.Config = fixed
	refuses := h.adapter(t)
	switch _, err := refuses.kube(t).CoreV1().Secrets(h.namespace).Create(t.Context(), child("refused"), metav1.CreateOptions{}); {
	case !apierrors.IsInvalid(err):
		t.Errorf("a child in west with an owner in east: apierrors.IsInvalid(err) is false; %v", err)
	case !strings.Contains(err.Error(), "east"):
		t.Errorf("a child in west with an owner in east: err.Error() = %q does not contain %q", err.Error(), "east")
	case !strings.Contains(err.Error(), "west"):
		t.Errorf("a child in west with an owner in east: err.Error() = %q does not contain %q", err.Error(), "west")
	}
	if _, err := west.Get(t.Context(), "refused", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it was created: %v", err)
	}
}

// between returns the text after the n-th occurrence of from, up to the next to.
func between(s, from, to string, n int) string {
	for range n {
		_, s, _ = strings.Cut(s, from)
	}
	s, _, _ = strings.Cut(s, to)
	return s
}
