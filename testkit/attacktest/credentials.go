package attacktest

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// TokenClient returns a client that has only the bearer token.
func (s *Env) TokenClient(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(s.Cluster.TokenConfig(token))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ListPods lists the pods of a namespace and returns the error.
func ListPods(t *testing.T, k *kubernetes.Clientset, namespace string) error {
	t.Helper()
	_, err := k.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	return err
}

// AccountConfig returns the client configuration of one of the product's ServiceAccounts. Tests use it for requests
// that the programs never send, but that a thief of the credential could send.
func (s *Env) AccountConfig(t *testing.T, name string) *rest.Config {
	t.Helper()
	path, err := s.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return ClientConfig(t, path)
}

func ClientConfig(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// Decode decodes one line of JSON.
func Decode(t *testing.T, line string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(line), into); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
}

// KubectlAs runs kubectl as user, by the administrator's right to impersonate.
func (s *Env) KubectlAs(t *testing.T, user string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	return kubetest.Kubectl(t.Context(), s.Cluster.Kubeconfig, append(args, "--as="+user, "--as-group=system:authenticated")...)
}
