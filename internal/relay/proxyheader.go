package relay

import (
	"encoding/binary"
	"net/netip"
)

// signature is the start of a PROXY header of version 2.
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// proxyHeader returns a PROXY protocol header of version 2 for a TCP connection. If the address
// families differ, both addresses are written as IPv6.
func proxyHeader(from, to netip.AddrPort) []byte {
	h := append([]byte(signature), 0x21) // version 2, command PROXY
	src, dst := from.Addr().Unmap(), to.Addr().Unmap()
	var addrs []byte
	if src.Is4() && dst.Is4() {
		h = append(h, 0x11) // TCP over IPv4
		a, b := src.As4(), dst.As4()
		addrs = append(append(addrs, a[:]...), b[:]...)
	} else {
		h = append(h, 0x21)
		a, b := src.As16(), dst.As16()
		addrs = append(append(addrs, a[:]...), b[:]...)
	}
	addrs = binary.BigEndian.AppendUint16(addrs, from.Port())
	addrs = binary.BigEndian.AppendUint16(addrs, to.Port())
	return append(binary.BigEndian.AppendUint16(h, uint16(len(addrs))), addrs...)
}
