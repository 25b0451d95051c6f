#include "tools/report/trace_file.hpp"

#include "tools/report/rmm_log.hpp"

namespace tern::tools {

Result<trace::MemoryTrace> try_read_trace_file(const std::string& path) {
  return is_rmm_log(path) ? try_read_rmm_log(path) : trace::MemoryTrace::try_read(path);
}

}  // namespace tern::tools
