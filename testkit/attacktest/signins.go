package attacktest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func ErrorOf[T any](_ T, err error) error { return err }

// EndSignInIn makes a sign-in end in d, by the two fields that the access server's
// account may write, and returns its end when the operator has taken note. When
// that takes half of d, which is for the test, it ends later.
func (s *Env) EndSignInIn(t *testing.T, name string, d time.Duration) time.Time {
	t.Helper()
	c, err := client.New(s.AccountConfig(t, "tailplane-access"), client.Options{Scheme: s.KubeClient.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	const period = 10 * time.Minute
	for ; ; d *= 4 {
		asked := time.Now().Add(d - period)
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"period": metav1.Duration{Duration: period}, "askedAt": metav1.NewTime(asked)}})
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
		if err := c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
		end := o.Spec.AskedAt.Add(period)
		if d <= 0 {
			return end
		}
		if Within(d/2, func() bool {
			err := s.KubeClient.Get(t.Context(), client.ObjectKeyFromObject(o), o)
			return err == nil && o.Status.ObservedGeneration == o.Generation
		}) {
			if !o.Status.ValidUntil.Time.Equal(end) {
				t.Fatalf("it ends at %v, not %v", o.Status.ValidUntil, end)
			}
			return end
		}
		if d > Long {
			t.Fatalf("the operator has not taken note of the end at %v", end)
		}
	}
}

// RestartOperator starts the operator again after it was killed. It does not wait
// for the dead one's Lease, which a person would have to.
func (s *Env) RestartOperator(t *testing.T) {
	t.Helper()
	s.ReleaseLease(t)
	if err := s.StartOperator(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// AddReplica starts another access server: another node with a name, a state and a
// record of its own, and settings in which pairs of texts are replaced. It returns
// the name that control gave it.
func (s *Env) AddReplica(t *testing.T, name string, edit ...string) string {
	t.Helper()
	dir := filepath.Join(s.Dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "authkey")
	if err := os.WriteFile(key, []byte(s.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := s.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(append(edit, filepath.Join(s.Dir, "access")+"/", dir+"/", s.AuthKeyFile(), key)...).Replace(string(settings))
	kubeconfig, err := s.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-access", dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Try(name, "access", nil, text, "--kubeconfig", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(Long); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	if err := p.WaitLog(ctx, `"access is serving"`); err != nil {
		t.Fatal(err)
	}
	return ServingNames(t, p)[0]
}
