package controller

import (
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/kube"
)

// ClusterKeySecret is the Secret of the cluster's key.
const ClusterKeySecret = "tailplane-cluster-key"

// A ClusterKey is the Secret that all access servers of a cluster share.
type ClusterKey = kube.KeySecret[httpapi.Key]

// NewClusterKey returns the cluster key Secret in namespace. It makes no request yet.
func NewClusterKey(config *rest.Config, namespace string) (*ClusterKey, error) {
	return kube.NewKeySecret(config, namespace, ClusterKeySecret, "pin the new key in all clients", httpapi.NewKey,
		func(k httpapi.Key) string { return k.Public().String() })
}
