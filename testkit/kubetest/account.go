//go:build unix

package kubetest

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenSeconds is the lifetime of a ServiceAccount token in a generated kubeconfig. It is longer than any test or
// demo, because nothing renews the token.
const tokenSeconds = 12 * 60 * 60

// ServiceAccountKubeconfig writes a kubeconfig with a token of the ServiceAccount to dir and returns its path. A
// program that uses it has exactly the rights of that account, as in a pod. The token is valid for twelve hours and
// survives a Restart.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name, dir string) (string, error) {
	request, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenSeconds))},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token for ServiceAccount %s/%s: %w", namespace, name, err)
	}
	k := clientcmdapi.NewConfig()
	k.Clusters[c.Name] = &clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: c.CA}
	k.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	k.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: name, Namespace: namespace}
	k.CurrentContext = c.Name
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%s.kubeconfig", c.Name, namespace, name))
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		return "", fmt.Errorf("kubeconfig of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return path, nil
}

// TokenConfig returns a client configuration for a bearer token. Clients have only the rights of the token, and no
// client-side throttling.
func (c *Cluster) TokenConfig(token string) *rest.Config {
	r := rest.AnonymousClientConfig(c.config)
	r.BearerToken = token
	r.QPS = -1
	return r
}
