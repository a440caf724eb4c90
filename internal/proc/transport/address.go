package transport

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// An address is HOST:PORT, with an IPv6 host in brackets. Users may list several addresses, separated by commas, of
// which one answers.

// maxFile is how many bytes of an address file are read.
const maxFile = 1 << 12

// ParseAddresses returns the addresses in a text; the peer listens at one of them. It always returns at least one,
// which is "" for an empty text. A text @FILE refers to a file, which is read on every call because its content may
// change.
func ParseAddresses(text string) []string {
	if name, is := strings.CutPrefix(text, "@"); is {
		text, _ = readAddressFile(name) // dialling "" fails and is retried
	}
	all := strings.Split(text, ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// readAddressFile returns the content of an address file.
func readAddressFile(name string) (string, error) {
	f, err := disk.OpenRegular(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return strings.TrimSpace(string(b)), err
}

// CheckAddress returns an error if a text contains an address that cannot be dialled. flag is the option that the text
// comes from.
func CheckAddress(flag, text string) error {
	if name, is := strings.CutPrefix(text, "@"); is {
		if _, err := readAddressFile(name); err != nil {
			return fmt.Errorf("%w: %s %s: cannot read the address file: %w", perdure.ErrUsage, flag, text, err)
		}
	}
	for _, addr := range ParseAddresses(text) {
		host, port, err := net.SplitHostPort(addr)
		number, bad := strconv.ParseUint(port, 10, 16)
		switch ip := net.ParseIP(host); {
		case err != nil || host == "" || bad != nil || number == 0:
			return fmt.Errorf("%w: %s %s: invalid address %q; write HOST:PORT, for example 10.0.0.5:7000 or "+
				"[fd00::5]:7000; separate several addresses with commas", perdure.ErrUsage, flag, text, addr)
		case ip != nil && ip.IsUnspecified():
			return fmt.Errorf("%w: %s %s: %s means every address of a machine; write the one at which the machine "+
				"can be reached", perdure.ErrUsage, flag, text, host)
		}
	}
	return nil
}

// PublishedAddress returns the address to advertise for a process that was asked to listen at listen and does listen at
// at. It is advertise, with the port of at if it has none or 0, or at if advertise is "". An address that other
// machines cannot dial is an error.
func PublishedAddress(listen, at, advertise string) (string, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return "", fmt.Errorf("%w: --listen %s: write HOST:PORT, for example 10.0.0.5:7000 or [fd00::5]:7000",
			perdure.ErrUsage, listen)
	}
	if advertise == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return "", fmt.Errorf("%w: --listen %s means every address of this machine; add --advertise HOST:PORT "+
				"with the one that other machines can reach", perdure.ErrUsage, listen)
		}
		return at, nil
	}
	sent, toldPort, err := net.SplitHostPort(advertise)
	if err != nil { // advertise has no port
		sent, toldPort = strings.Trim(advertise, "[]"), port
	}
	if toldPort == "0" {
		toldPort = port
	}
	if strings.Contains(advertise, ",") {
		return "", fmt.Errorf("%w: --advertise %s: a process has one address; write HOST:PORT", perdure.ErrUsage,
			advertise)
	}
	all := net.JoinHostPort(sent, toldPort)
	return all, CheckAddress("--advertise", all)
}

// DialAddress returns the address at which this machine reaches a process that listens at at, which may stand for
// all addresses.
func DialAddress(at string) string {
	host, port, err := net.SplitHostPort(at)
	ip := net.ParseIP(host)
	switch {
	case err != nil || host != "" && (ip == nil || !ip.IsUnspecified()):
		return at
	case ip != nil && ip.To4() == nil:
		return net.JoinHostPort(net.IPv6loopback.String(), port)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// ReachableAddress returns an address at which other machines reach a process that listens at at. If at stands for all
// addresses, the host of other is used, at which they reach this machine. If other has no host, it returns at.
func ReachableAddress(at, other string) string {
	host, port, err := net.SplitHostPort(at)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return at
	}
	sent, _, err := net.SplitHostPort(other)
	if err != nil { // other has no port
		sent = strings.Trim(other, "[]")
	}
	if sent == "" {
		return at
	}
	return net.JoinHostPort(sent, port)
}

// SourceAddress returns this machine's source address for connections to another address, or "" if it is unknown.
// Machines that can reach that other address can usually reach this machine there.
func SourceAddress(to string) string {
	c, err := net.Dial("udp", to) // sends nothing
	if err != nil {
		return ""
	}
	defer c.Close()
	host, _, _ := net.SplitHostPort(c.LocalAddr().String())
	return host
}

// IsLoopback reports whether only this machine can reach an address.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
