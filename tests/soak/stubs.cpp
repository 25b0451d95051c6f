#include "soak/driver.hpp"
namespace tern::soak {
void run_checker(const Program&) {}
void run_exchange(const Program&) {}
void run_threads(const Program&) {}
void run_server(const Program&) {}
}  // namespace tern::soak
