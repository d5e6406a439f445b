package signin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// A ClusterInfoRequest has no parameters.
type ClusterInfoRequest struct{}

// ClusterInfo describes how people reach the cluster. A client queries it first: the proof of the
// response shows which cluster the client is about to sign in to. The first four fields are the
// ones that existing clients read.
type ClusterInfo struct {
	ServerURL             string            `json:"server_url" doc:"URL of the API server for people"`
	InsecureSkipTLSVerify bool              `json:"insecure_skip_tls_verify"`
	CAData                []byte            `json:"ca_data" doc:"CA certificates of the API server, PEM"`
	Labels                map[string]string `json:"labels" null:"never"`
	Name                  string            `json:"name"`
	ID                    string            `json:"id" doc:"does not change when the name changes"`
	CAHash                string            `json:"ca_hash" doc:"sha256: and the hex SHA-256 of the sorted DER forms of ca_data"`
	Key                   httpapi.PublicKey `json:"key,omitzero" doc:"the public key that verifies Tailplane-Proof; absent while the server has no key"`
	Version               string            `json:"version" doc:"version of the access server"`
}

func (d *Service) clusterInfo(_ context.Context, p access.Permit, _ ClusterInfoRequest) (ClusterInfo, error) {
	if err := p.Require(access.ClusterInfo, d.Now()); err != nil {
		return ClusterInfo{}, err
	}
	info := d.Cluster
	if d.Key != nil {
		key, _ := d.Key()
		info.Key = key.Public()
	}
	if info.Labels == nil {
		info.Labels = map[string]string{}
	}
	return info, nil
}

// CAHash returns a short ID for a list of PEM certificates, independent of their order. It is
// "sha256:" and the hex SHA-256 of their DER forms, sorted and concatenated.
func CAHash(certificates []byte) (string, error) {
	var ders [][]byte
	for rest := certificates; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return "", errors.New("it contains data that is not a PEM certificate")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("certificate %d: %w", len(ders)+1, err)
		}
		ders = append(ders, block.Bytes)
	}
	if len(ders) == 0 {
		return "", errors.New("it contains no certificate")
	}
	slices.SortFunc(ders, bytes.Compare)
	sum := sha256.Sum256(bytes.Join(ders, nil))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
